"""The SQLite store: the only thing that the network half and the learner share.

Every table has one writing side: ``NetworkStore`` or ``LearnerStore``. ``StoreReader`` reads all of
it, also when no daemon runs.
"""

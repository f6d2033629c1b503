"""N learners in one process, in lockstep or each at its own pace: the daemon's code without sockets and store.

What reads top-down, in this order::

    specification.py   what is to be done
    jobs.py            many runs, in several processes
    runner.py          one run, from its start or its last checkpoint to the end
    engine.py          what it asks of one of these two:
    lockstep.py        all parties, round by round, on a simulated clock
    timed.py           whoever is least far acts next, on a simulated clock
    pace.py            what a specification says of that
    pacer.py           one party of it, in the middle of its round
    node.py            one party's round: generate, publish, train
    evaluating.py      how good a party is, on items that nobody trains on
    mailbox.py         what the others' batches come to at one party
    harm.py            what a hostile party publishes instead
    figures.py, results.py, checkpoint.py
"""

"""N learners in lockstep in one process: the daemon's code without sockets, store and wall clock.

What reads top-down, in this order::

    specification.py   what is to be done
    jobs.py            many runs, in several processes
    runner.py          one run, from its start or its last checkpoint to the end
    lockstep.py        all parties, round by round, on a simulated clock
    node.py            one party's round: generate, publish, train
    evaluating.py      how good a party is, on items that nobody trains on
    mailbox.py         what the others' batches come to at one party
    harm.py            what a hostile party publishes instead
    figures.py, results.py, checkpoint.py
"""

"""N learners in lockstep in one process: the daemon's code without sockets, store and wall clock."""

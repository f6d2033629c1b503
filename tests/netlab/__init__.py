"""Several machines on one: hosts are network namespaces, and an internet with delays lies between them."""

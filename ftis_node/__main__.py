"""``python -m ftis_node``: the same as the ``ftis-node`` command."""

from ftis_node.cli import main

if __name__ == "__main__":
    main()

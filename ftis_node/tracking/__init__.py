"""Reporting rounds to trackers, out of the store and in processes of their own (``python -m ftis_node.tracking``)."""

"""Engines that execute plans, behind one interface (``engine``)."""

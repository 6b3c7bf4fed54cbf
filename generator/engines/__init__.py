"""The engines that execute plans, behind one interface."""

"""Fuzzing: everything that strangers can send, while another tenant's answers say whether it harmed anybody."""

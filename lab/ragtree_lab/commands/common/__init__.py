"""What several benchmark commands share: options, prompts of questions, and a gate that is run first."""

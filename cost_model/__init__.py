"""Cost models: from the features of candidates to scores that order them, higher is better."""

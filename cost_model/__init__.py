"""Cost models: they turn features of candidates into scores that order them, higher is better."""

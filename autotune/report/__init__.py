"""What people look at: explanations of kernels and of models."""

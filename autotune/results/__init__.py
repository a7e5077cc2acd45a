"""What people see while something is tuned, and the numbers in it."""

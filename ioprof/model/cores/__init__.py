"""What cores a job had, and who else used them."""

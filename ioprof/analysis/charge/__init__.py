"""What each step's time is charged to, and what the job did besides its steps."""

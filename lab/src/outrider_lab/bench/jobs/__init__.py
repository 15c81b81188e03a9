"""What Ray costs a job, beside bare processes."""

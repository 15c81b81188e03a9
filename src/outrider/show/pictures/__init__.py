"""PNG pictures, with a common palette."""

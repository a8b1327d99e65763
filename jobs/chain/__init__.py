"""What nightly and demo share: stages as processes of their own, and what is said about them on the terminal."""

"""Where lists are delivered to beside the lake, one kind of sink a file: JSON lines and a PostgreSQL table."""

"""The generated log of single impressions: users and items, click model, layouts, and damaged rows."""

"""The generated log of single impressions: its users and items, the click model, the layouts, damaged rows."""

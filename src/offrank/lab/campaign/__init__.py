"""Campaigns for reliability: what users, files and machines do wrong, many thousands of times."""

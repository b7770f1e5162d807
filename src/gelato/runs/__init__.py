"""Run folders, the training loop that resumes in them, and atomic file writes."""

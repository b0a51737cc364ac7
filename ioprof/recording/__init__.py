"""One recording, from before the job starts to its run folder; nothing here prints."""

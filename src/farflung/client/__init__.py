"""The submitter's side: the job a user declares, and what turns a job file into one."""

"""One Dynamo graph: the question that its compilation answers, and the answer at fixed and at changing sizes."""

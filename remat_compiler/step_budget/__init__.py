"""One budget for all graphs of a step: the callable for Dynamo, which graphs make up a step, and each graph's share."""

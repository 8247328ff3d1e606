"""One budget for all graphs of a step: what Dynamo calls, what is learnt of the step, and how the budget is shared."""

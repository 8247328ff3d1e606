"""One Dynamo graph at one set of sizes: a request, the compiled code, its check, and the next request."""

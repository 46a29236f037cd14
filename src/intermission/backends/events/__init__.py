"""Events that others tell of: what a bucket says about its objects, and the queue it says it in."""

"""The program that downloads a model's files onto a volume, in the Job or the init container that the operator creates.

It shares the operator's image, and nothing else: it has no rights in the cluster.
"""

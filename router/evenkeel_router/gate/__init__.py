"""The gate (R12): waiting requests of replicas whose engines do not order their own queues."""

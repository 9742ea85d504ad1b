"""The tables and figures of the papers, run here and set beside the published numbers (`evenkeel papers`)."""

"""What people read: plots, the text summary and the self-contained HTML report."""

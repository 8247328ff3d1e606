"""What programs, studies and tests share: peaks and times measured, models, instances, rows of tables."""

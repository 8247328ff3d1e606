"""From AOTAutograd's joint FX graph to the torch-free `TrainingGraph`."""

"""What one step computes on the devices: state, gradients, sums, and the step functions of all
modes."""

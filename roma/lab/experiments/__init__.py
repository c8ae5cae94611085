"""What is compared, under which loads, and against which bounds: edges around the simulator."""

"""Where the runs of a suite are trained: this machine, several processes, Ray, Slurm."""

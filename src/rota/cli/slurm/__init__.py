"""Slurm's words for Rota: `srun sbatch squeue scancel sinfo sacct`, each a module with `main(argv)`."""

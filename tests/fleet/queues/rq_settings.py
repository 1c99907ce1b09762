import rq_jobs  # noqa: F401, imported before RQ forks, as it recommends

"""Invalid options raise at once: where the task is declared, or when the worker starts."""

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from workglow_limit import InvalidArgument, RateLimiter, Store, UnknownLimit, WeightExceedsCapacity
from workglow_limit.celery import install

pytest_plugins = "workers"


def body(tenant=None): ...


def bound(self, tenant, n): ...


@pytest.fixture
def app(tmp_path):
    app = Celery("options", broker="memory://", set_as_current=False)
    install(app, f"sqlite:{tmp_path}/limits.db")
    return app


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "100/1x"}, r"policy is '100/1x': expected a unit"),
        ({"limit": 5}, r"limit of task options.task is 5: expected a policy such as '100/1m \+ 5 concurrent', or a limiter"),
        ({"limit": "1/1s", "limit_name": 5}, r"limit_name of task options.task is 5: expected a text"),
        ({"limit": "1/1s", "on_limit": "drop"}, r"on_limit is 'drop': expected one of hold, retry, wait, raise"),
        ({"limit": "1/1s", "limit_hold": -1}, r"limit_hold is -1: expected seconds"),
        ({"limit": "1/1s", "limit_hold": float("nan")}, r"limit_hold is nan: expected seconds"),
        ({"limit": "1/1s", "limit_grace": "1s"}, r"limit_grace is '1s': expected seconds"),
        ({"limit": "1/1s", "limit_timeout": True}, r"limit_timeout is True: expected seconds"),
        ({"limit": "1/1s", "limit_key": "tenat"}, r"limit_key of task options.task is 'tenat': expected an argument of the function: tenant"),
        ({"limit": "1/1s", "limit_key": "{tenat}"}, r"limit_key of task options.task is '\{tenat\}': expected an argument"),
        ({"limit": "1/1s", "limit_key": "{tenant"}, r"limit_key of task options.task is '\{tenant': expected a format"),
        ({"limit": "1/1s", "limit_key": 5}, r"limit_key of task options.task is 5: expected the name of an argument"),
        ({"limit": "1/1s", "limit_weight": 0}, r"limit_weight of task options.task is 0: expected a whole number"),
        ({"limit": "1/1s", "limit_weight": "cost"}, r"limit_weight of task options.task is 'cost': expected an argument"),
        ({"limit": "a: 1/1s", "limit_weight": {"a": 0}}, r"limit_weight of task options.task\['a'\] is 0: expected a whole number"),
        ({"limit": "a: 1/1s", "limit_key": {"a": "tenat"}}, r"limit_key of task options.task\['a'\] is 'tenat': expected an argument"),
        ({"limit_key": "tenant"}, r"limit of task options.task is None: expected a policy or a limiter, because limit_key is given"),
        ({"limt": "1/1s"}, r"an option of task options.task is 'limt': expected one of limit, limit_name, limit_key"),
        ({"limit": "1/1s", "limit_keys": "tenant"}, r"an option of task options.task is 'limit_keys': expected one of"),
        ({"limit": "1/1s", "limitkey": body}, r"an option of task options.task is 'limitkey': expected one of"),
        ({"limit": "1/1s", "on_limits": "drop"}, r"an option of task options.task is 'on_limits': expected one of"),
        ({"limit": "1/1s", "LIMIT_HOLD": 5}, r"an option of task options.task is 'LIMIT_HOLD': expected one of"),
        ({"limit": "1/1s", "rate_limit": "1/s"}, r"rate_limit of task options.task is '1/s': expected none with limit"),
    ],
)  # fmt: skip
def test_invalid_declarations_raise(options, message, app):
    app.finalize()
    with pytest.raises(InvalidArgument, match=message):
        app.task(name="options.task", shared=False, **options)(body)


def test_a_declaration_before_the_app_is_finalized(app):
    app.task(name="options.task", shared=False, limit="100/1x")(body)
    with pytest.raises(InvalidArgument, match="policy is '100/1x'"):
        app.finalize()


def test_a_declaration_before_the_limits_are_installed(tmp_path):
    app = Celery("options", broker="memory://", set_as_current=False)
    app.register_task(type("Own", (app.Task,), {"name": "options.own", "limit": "100/1x"})())
    with pytest.raises(InvalidArgument, match="policy is '100/1x'"):
        install(app, f"sqlite:{tmp_path}/limits.db")


def test_a_misspelled_option_of_an_annotation(app):
    app.conf.task_annotations = {"options.task": {"limit": "1/1s", "limit_wieght": "one"}}
    app.task(name="options.task", shared=False)(body)
    with pytest.raises(
        InvalidArgument, match="an option of task options.task is 'limit_wieght': expected one of limit"
    ):
        app.finalize()


def test_a_misspelled_option_of_a_class(app):
    class Own(app.Task):
        name = "options.own"
        limit_weights = 5

    with pytest.raises(
        InvalidArgument, match="an option of task options.own is 'limit_weights': expected one of limit"
    ):
        app.register_task(Own())


def test_names_that_are_not_meant_for_limits(app):
    class Base(app.Task):
        abstract = True
        _limit = 5
        no_limit = True

        def limit_of(self, tenant): ...

        @property
        def limiter(self): ...

    options = {"time_limit": 5, "soft_time_limit": 4, "rate_limit": None, "on_commit": body}
    app.task(name="options.task", base=Base, shared=False, limit="1/1s", **options)(body)
    app.finalize()
    assert list(app.limits.tasks) == ["options.task"]


@pytest.mark.parametrize("namespace", [None, "CELERY"])
@pytest.mark.parametrize(
    "name", ["task_limit_storage", "task_default_limits", "task_defaultlimit_key", "worker_limits_held"]
)
def test_a_misspelled_setting(name, namespace, app):
    name_there = f"{namespace}_{name.upper()}" if namespace else name
    settings = type("settings", (), {name_there: 5})
    app.config_from_object(settings, namespace=namespace)
    for _ in range(2):  # Whoever ignores the error gets it again.
        with pytest.raises(InvalidArgument, match=f"a setting is '{name}': expected one of task_limit_store, worker_"):
            app.finalize()


def test_settings_that_are_not_meant_for_limits(app):
    app.conf.update(task_default_rate_limit="1/s", task_time_limit=5, worker_eta_task_limit=5, task_default_timeout=5)
    app.finalize()


def test_settings_without_the_prefix_are_not_celerys(app):
    app.config_from_object(type("settings", (), {"TASK_LIMITED": 5, "CELERY_TIMEZONE": "UTC"}), namespace="CELERY")
    app.finalize()
    assert app.conf.timezone == "UTC"


def test_one_limit_has_one_policy(app):
    app.finalize()
    for policy in "1/1s", "1/1s", None:
        app.task(name=f"options.{policy}", shared=False, limit=policy, limit_name="one")(body)
    with pytest.raises(
        InvalidArgument, match="limit of task options.other is '2/1s': expected '1/1s', because limit 'one' is"
    ):
        app.task(name="options.other", shared=False, limit="2/1s", limit_name="one")(body)


def test_a_limiter_has_its_own_name(app):
    app.finalize()
    limiter = RateLimiter(app.limits.store, "mine", max_executions=1, window_size_in_seconds=60)
    app.task(name="options.mine", shared=False, limit=limiter)(body)
    assert app.limits.tasks["options.mine"].limiter is limiter
    with pytest.raises(
        InvalidArgument, match="limit_name of task options.other is 'other': expected none with a limiter"
    ):
        app.task(name="options.other", shared=False, limit=limiter, limit_name="other")(body)


def test_every_option_has_a_setting():
    app = Celery("options", broker="memory://", set_as_current=False)
    app.conf.update(
        task_limit_store="memory:", task_default_limit="7/1h", task_default_limit_hold=3, task_default_on_limit="retry"
    )
    install(app)
    app.task(name="options.one", shared=False)(body)
    app.task(name="options.two", shared=False, limit="1/1h", limit_hold=0, on_limit="hold")(body)
    one, two = (app.tasks[f"options.{name}"] and app.limits.tasks[f"options.{name}"] for name in ("one", "two"))
    assert (one.hold, one.on_limit, one.limiter.peek().limit) == (3.0, "retry", 7)
    assert (two.hold, two.on_limit, two.limiter.peek().limit) == (0.0, "hold", 1)
    assert not [name for name in app.limits.tasks if name.startswith("celery.")]


def test_functions_for_keys_and_weights(app):
    options = {"limit_key": lambda tenant, n: tenant and f"{tenant}!", "limit_weight": lambda tenant, n: n}
    app.task(name="options.of", shared=False, bind=True, limit="9/1h", **options)(bound)
    app.finalize()
    limit = app.limits.tasks["options.of"]
    assert (limit.key((("a", 2), {})), limit.weight((("a",), {"n": 2}))) == ("a!", 2)
    assert limit.key(((None, 2), {})) is None


def test_keys_and_weights_of_parts(app):
    options = {"limit_key": {"tenant": "tenant"}, "limit_weight": {"tokens": "n", "requests": 2}}
    app.task(
        name="options.of", shared=False, bind=True, limit="requests: 9/1h + tokens: 5/1h + tenant: 3/1h", **options
    )(bound)
    whole = {"limit_key": lambda tenant: {"tenant": tenant}, "limit_weight": lambda tenant: {"tokens": 3}}
    app.task(name="options.whole", shared=False, limit_name="options.of", **whole)(body)
    app.finalize()
    limit, other = app.limits.tasks["options.of"], app.limits.tasks["options.whole"]
    call = ("acme", 4), {}
    assert (limit.key(call), limit.weight(call)) == ({"tenant": "acme"}, {"tokens": 4, "requests": 2})
    assert limit.sample == ({"tenant": None}, {"tokens": 1, "requests": 2})
    assert (other.key((("acme",), {})), other.weight((("acme",), {}))) == ({"tenant": "acme"}, {"tokens": 3})
    app.WorkController(pool_cls="solo")
    assert app.tasks["options.of"].apply(args=("acme", 4)).state == "SUCCESS"
    left = {part: limit.limiter.peek({"tenant": "acme"}, {part: 1}) for part in ("tokens", "tenant")}
    assert left["tokens"].remaining == 1 and left["tenant"].remaining == 1


def test_no_store():
    app = Celery("options", broker="memory://", set_as_current=False)
    install(app)
    app.task(name="options.task", shared=False, limit="1/1s")(body)
    with pytest.raises(ImproperlyConfigured, match="the limits have no store"):
        app.finalize()
    with pytest.raises(ImproperlyConfigured, match="already has limits"):
        install(app)


@pytest.mark.parametrize(
    ("declare", "error", "message"),
    [
        ({"limit_name": "elsewhere"}, UnknownLimit, 'no limit named "elsewhere" is declared'),
        ({"limit": "3/1s", "limit_weight": 4}, WeightExceedsCapacity, "weight is 4: limit .* grants at most 3 units"),
        ({"limit": "a: 3/1s", "limit_weight": {"a": 4}}, WeightExceedsCapacity, "limit .*/a.* grants at most 3 units"),
        ({"limit": "a: 3/1s", "limit_key": {"b": "tenant"}}, InvalidArgument, 'part is "b".*: a'),
    ],
)
def test_errors_at_the_start_of_the_worker(declare, error, message, app):
    app.task(name="options.task", shared=False, **declare)(body)
    app.finalize()  # Clients may lack what workers have.
    with pytest.raises(error, match=message):
        app.WorkController(pool_cls="solo")


def test_a_store_that_processes_do_not_share(tmp_path):
    app = Celery("options", broker="memory://", set_as_current=False)
    install(app, Store("memory:"))
    app.task(name="options.task", shared=False, limit="1/1s")(body)
    with pytest.raises(InvalidArgument, match="store is 'memory:': expected one that processes share"):
        app.WorkController(pool_cls="prefork")


def test_the_number_of_held_tasks_is_checked(app):
    app.conf.worker_limit_held = 0
    app.task(name="options.task", shared=False, limit="1/1s")(body)
    with pytest.raises(InvalidArgument, match="worker_limit_held is 0: expected a whole number of at least 1"):
        app.WorkController(pool_cls="solo")

"""@limiter.limit on functions, coroutine functions, methods and other callables."""

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from workglow_limit import AcquireTimeout, ConcurrencyLimiter, InvalidArgument, ManualClock, RateLimiter, Store


def rate(n=1):
    return RateLimiter(Store("memory:", clock=ManualClock()), "jobs", max_executions=n, window_size_in_seconds=60)


def test_each_call_takes_a_permit_and_ends_it():
    limiter = ConcurrencyLimiter(2)

    @limiter.limit()
    def double(x, *, plus=0):
        """Doubles."""
        assert limiter.peek().remaining == 1
        return 2 * x + plus

    assert double(2, plus=1) == 5
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")
    assert limiter.peek().remaining == 2

    @limiter.limit(weight=2)
    def fail():
        assert limiter.peek().remaining == 0
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert limiter.peek().remaining == 2


def test_a_key_from_the_arguments():
    limiter = rate()

    @limiter.limit(key=lambda tenant, **_: tenant, timeout=0)
    def call(tenant, **_):
        return tenant

    assert [call("a"), call("b", more=1)] == ["a", "b"]
    with pytest.raises(AcquireTimeout):
        call("a")
    assert limiter.peek("a").remaining == 0
    assert limiter.peek().remaining == 1


def test_a_fixed_key():
    limiter = rate()
    limiter.limit(lambda: "k")(lambda: None)()
    assert limiter.peek("k").remaining == 0


def test_coroutine_functions():
    limiter = rate(n=2)

    @limiter.limit(key=lambda tenant: tenant, weight=2, timeout=0)
    async def call(tenant):
        await asyncio.sleep(0)
        return tenant

    async def main():
        assert await call("a") == "a"
        with pytest.raises(AcquireTimeout):
            await call("a")
        return await call("b")

    assert inspect.iscoroutinefunction(call)
    assert asyncio.run(main()) == "b"


def test_a_weight_from_the_arguments():
    limiter = rate(n=10)
    call = limiter.limit(lambda tenant, _: tenant, weight=lambda _, prompt: len(prompt), timeout=0)(lambda *_: None)
    call("a", "four")
    call("b", "seven..")
    assert [limiter.peek(key).remaining for key in ("a", "b", None)] == [6, 3, 10]
    with pytest.raises(AcquireTimeout):
        call("a", "seven..")
    # The result of such a function is checked like a plain value, and its exceptions are raised.
    for weigh, error in [
        (lambda: 0, InvalidArgument),
        (lambda: "1", InvalidArgument),
        (lambda: 1 / 0, ZeroDivisionError),
    ]:
        with pytest.raises(error):
            limiter.limit(weight=weigh)(pytest.fail)()
    assert limiter.stats().admitted == 2


def test_methods_of_all_kinds():
    limiter = ConcurrencyLimiter(1)

    def held(*given):
        assert limiter.peek(given[-1]).remaining == 0
        return given

    class Client:
        @limiter.limit(key=lambda self, tenant: tenant)
        def method(self, tenant):
            return held(self, tenant)

        @limiter.limit(key=lambda cls, tenant: tenant)
        @classmethod
        def of_class(cls, tenant):
            return held(cls, tenant)

        @limiter.limit(key=lambda tenant: tenant)
        @staticmethod
        def static(tenant):
            return held(tenant)

        @classmethod
        @limiter.limit(key=lambda cls, tenant: tenant)
        def inner_class(cls, tenant):
            return held(cls, tenant)

        @limiter.limit(key=lambda self, tenant: tenant)
        async def coroutine(self, tenant):
            return held(self, tenant)

    client = Client()
    assert client.method("a") == (client, "a")
    assert client.of_class("a") == Client.of_class("a") == client.inner_class("a") == (Client, "a")
    assert client.static("a") == Client.static("a") == ("a",)
    assert asyncio.run(client.coroutine("a")) == (client, "a")
    assert limiter.peek("a").remaining == 1


def test_all_callables_can_be_decorated():
    limiter = ConcurrencyLimiter(1)

    class Plain:
        def __call__(self, x):
            assert limiter.peek().remaining == 0
            return x

    class Asynchronous:
        async def __call__(self, x):
            await asyncio.sleep(0)
            return Plain()(x)

    assert limiter.limit()(Plain())(5) == limiter.limit()(partial(Plain(), 5))() == 5
    assert limiter.limit()(print).__name__ == "print"
    for function in Asynchronous(), partial(Asynchronous().__call__):
        decorated = limiter.limit()(function)
        assert inspect.iscoroutinefunction(decorated)
        assert asyncio.run(decorated(5)) == 5
    assert limiter.peek().remaining == 1


def test_threads_share_the_limit():
    limiter = ConcurrencyLimiter(2)
    running = []

    @limiter.limit()
    def job(_):
        running.append(None)
        together = len(running)
        running.pop()
        return together

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(job, range(200))) <= {1, 2}


def test_a_call_cancelled_in_or_before_its_body_holds_nothing():
    limiter = ConcurrencyLimiter(1)
    begun = asyncio.Event()

    @limiter.limit()
    async def job():
        begun.set()
        await asyncio.Event().wait()

    async def main():
        tasks = [asyncio.create_task(job()) for _ in range(2)]
        await begun.wait()
        assert limiter.peek().remaining == 0
        for task in reversed(tasks):
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 2

    asyncio.run(main())
    assert limiter.peek().remaining == 1


def test_a_non_function_is_refused():
    limiter = rate()
    for nothing in None, 5, "k":
        with pytest.raises(TypeError, match="is not a function: call limit to get a decorator, as in @limiter.limit"):
            limiter.limit()(nothing)

    @limiter.limit  # A limit without parentheses takes the function as its key.
    def forgot(x):
        return x

    with pytest.raises(TypeError, match="^5 is not a function: .* @limiter.limit\\(\\)$"):
        forgot(5)


def test_generators_are_refused():
    async def asynchronous():
        yield

    def synchronous():
        yield

    class Called:
        def __call__(self):
            yield

    for function in asynchronous, synchronous, Called(), staticmethod(synchronous), classmethod(asynchronous):
        with pytest.raises(TypeError, match="is a generator function: use acquire inside it"):
            rate().limit()(function)


def test_arguments_by_name():
    limiter = rate(n=10)

    @limiter.limit("{tenant.name}:{model}", "tokens")
    def call(tenant, tokens, model="m", **more):
        return tenant.name, tokens, model, more

    class Tenant:
        name = "t"

    assert call(Tenant, 3) == ("t", 3, "m", {})
    assert call(Tenant, model="n", tokens=4, x=1) == ("t", 4, "n", {"x": 1})
    assert [limiter.peek(key).remaining for key in ("t:m", "t:n", None)] == [7, 6, 10]

    class Client:
        @limiter.limit("number")
        def method(self, number=5): ...

        @staticmethod
        @limiter.limit("rest")
        def static(**more): ...

    Client().method()
    Client.static(rest=6)
    assert [limiter.peek(key).remaining for key in ("5", "6")] == [9, 9]  # Other values become text.
    limiter.limit(lambda: None)(lambda: None)()
    assert limiter.peek().remaining == 9


def test_a_key_without_a_text_of_its_own_is_refused():
    async def later(tenant): ...

    for key in "tenant", later:
        limiter = rate()
        with pytest.raises(TypeError, match="^key is <.*>: expected a str or None, or a value with a text, not "):
            limiter.limit(key=key)(lambda tenant: None)(object())
        assert limiter.peek().remaining == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "tenat"}, "key is 'tenat': expected an argument of the function: tenant"),
        ({"key": "{tenat}"}, "key is '{tenat}': expected an argument of the function: tenant"),
        ({"key": "{tenant"}, "key is '{tenant': expected a format such as '{tenant}:{model}'"),
        ({"key": ""}, "key is '': expected the name of an argument, a format"),
        ({"weight": "n"}, "weight is 'n': expected an argument of the function: tenant"),
    ],
)
def test_errors_are_raised_where_the_decorator_is_written(options, message):
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        rate().limit(**options)(lambda tenant: None)

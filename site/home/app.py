from workglow_limit import Store

store = Store("sqlite:limits.db")
openai = store.limiter("openai", "100/1m")


@openai.limit(key="tenant", timeout=30)
def ask(tenant, prompt):
    return prompt.upper()  # call the API


print(ask("acme", "hello"))
print(openai.peek("acme").remaining, "left")

"""Tools that come with Umbel.

    question    ask_user: a person answers the call       completion   task_complete: the agent says that it is done
    dates       get_today_date                            discovery    tool_search: finds deferred tools
    search      web_search over a search provider         fetch        web_fetch over a page fetcher
    http        the fetcher, which stays off private networks (``addresses``), and its ``pages`` as text

Import from the modules.
"""

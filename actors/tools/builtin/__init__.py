"""Tools that come with Umbel.

    question    ask_user: a person answers the call       completion   task_complete: the agent says that it is done
    dates       get_today_date                            discovery    tool_search: finds deferred tools
    search      web_search over a search provider         fetch        web_fetch over a page fetcher
    stored      read_stored_result, of long results       http         the fetcher; off private networks (``addresses``),
                                                                       with its ``pages`` as text

Import from the modules.
"""

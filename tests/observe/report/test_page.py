from asyncrl.observe.report import page


def test_text_is_escaped_wherever_it_goes() -> None:
    nasty = '<script>alert("&")</script>'
    made = [
        page.text(nasty),
        page.text("x", style='"><script>'),
        page.table([nasty, ""], [[nasty, nasty]]),
        page.folded(nasty, page.text("x")),
        page.page(nasty, []),
    ]

    assert all("<script" not in markup for markup in made)
    assert all("&lt;script&gt;" in markup for markup in made)


def test_markup_goes_through_as_it_is() -> None:
    assert (
        page.row([page.text("a", "b"), page.text("c", "b")], "div", "side")
        == '<div class="side"><b>a</b> <b>c</b></div>'
    )


def test_a_table_without_headings_has_no_head() -> None:
    assert "<thead>" not in page.table([], [["a", "b"]])
    assert "<thead><tr><th></th><th>run</th></tr></thead>" in page.table(["", "run"], [["a", "b"]])


def test_a_page_fetches_nothing() -> None:
    html = page.page("x", [])

    assert html.startswith("<!doctype html>")
    assert not any(word in html for word in ("http", "src=", "<link", "@import", "url("))

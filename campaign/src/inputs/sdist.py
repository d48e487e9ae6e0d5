"""Downloads the file of a source distribution through pip's own index, session and settings.

`pip download` would run the package's code to learn its metadata; here nothing of it runs.
Usage: python3 -c THIS NAME==VERSION FILE OUT
"""
import sys

from pip._internal.commands import create_command

requirement, file_name, out = sys.argv[1:]
name = requirement.split("==")[0]
command = create_command("download")
options, _ = command.parse_args([name])
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    links = [candidate.link for candidate in finder.find_all_candidates(name)]
    link = next((link for link in links if link.filename == file_name), None)
    if link is None:
        sys.exit(f"the index has no `{file_name}`")
    response = session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True)
    response.raise_for_status()
    with open(out, "wb") as file:
        for part in response.iter_content(1 << 20):
            file.write(part)

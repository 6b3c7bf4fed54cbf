import pytest
from pydantic import ValidationError

from generator.settings import KvSettings, ObjectStoreSettings
from generator.tiers.object_requests import open_store
from protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://host/folder"}, "there is no kind of object store 'ftp'; choose one of s3, gs, az, file"),
        ({"url": "bucket/prefix"}, "there is no kind of object store ''"),
        ({"url": "s3://"}, "names no bucket"),
        ({"url": "s3:///prefix"}, "names no bucket"),
        ({"url": "gs:///prefix"}, "names no bucket"),
        ({"url": "az:///prefix"}, "names no container"),
        ({"url": "file://"}, "is file:// and its absolute path"),
        ({"url": "file:///"}, "is file:// and its absolute path"),
        ({"url": "file://relative/folder"}, "is file:// and its absolute path"),
        ({"url": "s3://key:secret@bucket"}, "has no credentials, query or fragment"),
        ({"url": "az://container/prefix?sig=abc"}, "has no credentials, query or fragment"),
        ({"url": "file:///folder", "endpoint": "https://host"}, "a folder has no endpoint"),
        ({"url": "gs://bucket", "region": "eu-west-1"}, "gs takes no region"),
        ({"url": "s3://bucket", "endpoint": "host:9000"}, "an endpoint is http:// or https:// and a host"),
        ({"url": "s3://bucket", "endpoint": "https://key:secret@host"}, "without credentials"),
        ({"url": "s3://bucket", "endpoint": "http://host:9000"}, "has no TLS; allow_http allows it"),
        ({"url": "s3://bucket", "timeout_s": 0}, "greater than 0"),
        ({"url": "s3://bucket", "access_key_id": "key"}, "Extra inputs are not permitted"),
    ],
)
def test_what_names_no_store_is_refused(options, message):
    with pytest.raises(ValidationError) as refused:
        ObjectStoreSettings.model_validate(options)
    assert message in str(refused.value)
    (error,) = refused.value.errors()
    assert "secret" not in error["msg"]


@pytest.mark.parametrize(
    "options",
    [
        {"url": "s3://bucket"},
        {"url": "s3://bucket/some/prefix/", "region": "eu-west-1"},
        {"url": "s3://bucket/prefix", "endpoint": "http://127.0.0.1:9000", "allow_http": True},
        {"url": "gs://bucket/prefix", "endpoint": "https://storage.example.org"},
        {"url": "az://container/prefix", "endpoint": "https://account.example.org"},
    ],
)
def test_stores_are_opened_without_a_request(options, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert open_store(ObjectStoreSettings.model_validate(options)).name == options["url"]


def test_a_store_without_what_the_environment_should_have_is_a_configuration_error(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match=r"the object store az://container cannot be opened: .*Account") as refused:
        open_store(ObjectStoreSettings(url="az://container"))
    assert "\n" not in refused.value.message


def test_a_folder_is_created_and_used(tmp_path):
    requests = open_store(ObjectStoreSettings(url=f"file://{tmp_path}/some/a%20folder"))
    requests.put("one", memoryview(b"abc"))
    assert (tmp_path / "some" / "a folder" / "one").read_bytes() == b"abc"


def test_a_folder_that_cannot_be_created_is_a_configuration_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_store(ObjectStoreSettings(url=f"file://{tmp_path}/file/folder"))


def test_a_store_takes_the_place_of_the_folder(tmp_path):
    store = ObjectStoreSettings(url="s3://bucket/prefix/")
    places = KvSettings(disk_dir=tmp_path, object_store=store, disk_gib=2.0).places()
    assert (places.disk_dir, places.object_store, places.disk_bytes) == (None, store, 2 << 30)
    assert KvSettings(disk_dir=tmp_path).places().disk_dir == tmp_path


def test_ranks_have_folders_of_their_own_in_a_store(tmp_path):
    settings = KvSettings(disk_dir=tmp_path, object_store=ObjectStoreSettings(url="s3://bucket/prefix/"), disk_gib=2.0)
    places = settings.places(1, 2)
    assert places.object_store is not None
    assert places.object_store.url == "s3://bucket/prefix/rank-1-of-2"
    assert places.disk_bytes == 1 << 30

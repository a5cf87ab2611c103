#!/usr/bin/env bash
# Makes the folders of a host of an older version: make.sh GATEHOUSE OUTPUT.tar.gz
# The program is called as gatehouse from a PATH of its own, so that the record
# of the package that it is itself names no folder of this machine.
set -eu
program=$(realpath "$1") out=$(realpath -m "$2")
top=/tmp/gatehouse-upgrade # a name that means nothing on other machines
rm -rf $top; mkdir -p $top/bin $top/work $top/config $top/data $top/state $top/cache $top/run
trap 'kill $(cat $top/pid) 2>/dev/null || :; sleep 1; rm -rf $top' EXIT
cp "$program" $top/bin/gatehouse
cd $top/work
exec env -i PATH=$top/bin:/usr/bin:/bin HOME=$top/home TMPDIR=$top GATEHOUSE_CONFIG_DIR=$top/config \
	GATEHOUSE_DATA_DIR=$top/data GATEHOUSE_STATE_DIR=$top/state GATEHOUSE_CACHE_DIR=$top/cache GATEHOUSE_RUNTIME_DIR=$top/run \
	OUT="$out" TOP=$top bash -eu <<'MADE'
echo hello > a.txt
cat > ../config/gatehouse.yaml <<'YAML'
# Settings as version 0.1.0 reads them.
limits:
  deadline: 50s
  job_keep: 876000h
contexts:
  - name: default
    modules: [file, dir, lang, metrics, process, server, package, db, notification]
  - name: review
    description: Reading only.
    modules: [file]
    tools: [file_read, file_stat]
YAML
echo 'a long enough password' | gatehouse user add ann --role admin --password-stdin
gatehouse user add ci --no-password --role reader
gatehouse token create --user ann --name laptop --expires never > ../state/token-ann
gatehouse token create --user ci --context review --scope read --expires never > ../state/token-ci
printf 'the value of a secret' | gatehouse secret set TOKEN
gatehouse context create notes --module file --tool 'file_*' --env 'KEY=${secret:TOKEN}' --role reader
gatehouse serve --http -p 0 2> ../serve.err & echo $! > ../pid
until grep -q '"mcpServers"' ../serve.err; do sleep .2; done
url=$(grep -o 'http://127[^ ]*/mcp' ../serve.err | head -1)
call() { gatehouse call --url $url --token $(cat ../state/token-ann) "$@"; }
call file_read path=a.txt
call metrics_record type=build value=2.5
call server_set_name name='Old house'
call package_install id=inner command=gatehouse args=serve args=file confirm=inner
call job_list
# A question of the host, whose state the client carries, sealed.
meta='"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}'
curl -s $url -H "Authorization: Bearer $(cat ../state/token-ann)" -H 'Content-Type: application/json' \
	-H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tools/call' -H 'Mcp-Name: package_remove' \
	-d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"package_remove","arguments":{"id":"inner"},'"$meta"'}}' > ../state/question.json
cat ../state/question.json; grep -q requestState ../state/question.json
kill $(cat ../pid); wait
cd ..
find . -type f | sort
tar --sort=name --owner=0 --group=0 --mtime=@0 -czf "$OUT" config data state
MADE

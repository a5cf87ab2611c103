package fake

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// member is what the published interface says of one member of a body.
type member struct {
	kind     string // string, integer, boolean, object, array
	required bool
	least    int64    // of an integer
	most     int64    // of an integer; 0 means no limit
	of       []string // what a string may be; nil means anything
}

func text(of ...string) member       { return member{kind: "string", of: of} }
func whole(least, most int64) member { return member{kind: "integer", least: least, most: most} }
func must(m member) member           { m.required = true; return m }

var (
	flag   = member{kind: "boolean"}
	object = member{kind: "object"}
	array  = member{kind: "array"}
)

// bodies are what may be sent, by method and first part of the path. They follow
// the published description, and know nothing of the client that is tested.
var bodies = map[string]map[string]member{
	"PUT machine-config": {
		"vcpu_count": must(whole(0, 0)), "mem_size_mib": must(whole(0, 0)), "smt": flag, "track_dirty_pages": flag,
		"cpu_template": text("C3", "T2", "T2S", "T2CL", "T2A", "V1N1", "None"),
		"huge_pages":   text("None", "Transparent", "2M"),
	},
	"PATCH machine-config": {
		"vcpu_count": whole(0, 0), "mem_size_mib": whole(0, 0), "smt": flag, "track_dirty_pages": flag,
		"cpu_template": text("C3", "T2", "T2S", "T2CL", "T2A", "V1N1", "None"),
		"huge_pages":   text("None", "Transparent", "2M"),
	},
	"PUT boot-source": {"kernel_image_path": must(text()), "initrd_path": text(), "boot_args": text()},
	"PUT drives": {
		"drive_id": must(text()), "is_root_device": must(flag), "path_on_host": text(), "is_read_only": flag,
		"partuuid":   text(),
		"cache_type": text("Unsafe", "Writeback"), "io_engine": text("Sync", "Async"), "rate_limiter": object,
		"socket": text(),
	},
	"PATCH drives": {"drive_id": must(text()), "path_on_host": text(), "rate_limiter": object},
	"PUT network-interfaces": {
		"iface_id": must(text()), "host_dev_name": must(text()), "guest_mac": text(), "mtu": whole(68, 65535),
		"rx_rate_limiter": object, "tx_rate_limiter": object,
	},
	"PATCH network-interfaces": {"iface_id": must(text()), "rx_rate_limiter": object, "tx_rate_limiter": object},
	"PUT vsock":                {"guest_cid": must(whole(3, 0)), "uds_path": must(text()), "vsock_id": text()},
	"PUT entropy":              {"rate_limiter": object},
	"PUT mmds/config": {
		"network_interfaces": must(array),
		"version":            text("V1", "V2"),
		"ipv4_address":       text(),
		"imds_compat":        flag,
	},
	"PUT logger": {
		"log_path": text(), "level": text("Error", "Warning", "Info", "Debug", "Trace", "Off"),
		"show_level": flag, "show_log_origin": flag, "module": text(),
	},
	"PUT metrics": {"metrics_path": must(text())},
	"PUT actions": {"action_type": must(text("FlushMetrics", "InstanceStart", "SendCtrlAltDel"))},
	"PATCH vm":    {"state": must(text("Paused", "Resumed"))},
	"PUT snapshot/create": {
		"mem_file_path": must(text()),
		"snapshot_path": must(text()),
		"snapshot_type": text("Full", "Diff"),
	},
	"PUT snapshot/load": {
		"snapshot_path": must(text()), "mem_file_path": text(), "mem_backend": object,
		"enable_diff_snapshots": flag, "track_dirty_pages": flag,
		"resume_vm": flag, "network_overrides": array, "vsock_override": object, "clock_realtime": flag,
	},
}

// parse reads a body by the rules for it.
func parse(rule string, body []byte) (map[string]any, error) {
	var says map[string]any
	if err := json.Unmarshal(body, &says); err != nil {
		return nil, malformed("%v", err)
	}
	rules := bodies[rule]
	for _, name := range slices.Sorted(maps.Keys(says)) {
		m, known := rules[name]
		if !known {
			return nil, malformed("unknown field `%s`, expected one of %s", name,
				strings.Join(slices.Sorted(maps.Keys(rules)), ", "))
		}
		if err := m.check(name, says[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		if _, there := says[name]; rules[name].required && !there {
			return nil, malformed("missing field `%s`", name)
		}
	}
	return says, nil
}

func (m member) check(name string, v any) error {
	ok := false
	switch x := v.(type) {
	case string:
		if ok = m.kind == "string"; ok && m.of != nil && !slices.Contains(m.of, x) {
			return malformed("unknown variant `%s`, expected one of %s", x, strings.Join(m.of, ", "))
		}
	case float64:
		if ok = m.kind == "integer" && x == float64(int64(x)); ok &&
			(int64(x) < m.least || m.most > 0 && int64(x) > m.most) {
			return malformed("invalid value: integer `%v` of `%s`", x, name)
		}
	case bool:
		ok = m.kind == "boolean"
	case map[string]any:
		ok = m.kind == "object"
	case []any:
		ok = m.kind == "array"
	}
	if !ok {
		return malformed("invalid type of `%s`, expected %s", name, m.kind)
	}
	return nil
}

func malformed(format string, args ...any) error {
	return refusal("An error occurred when deserializing the json body of a request: " + fmt.Sprintf(format,
		args...) + ".")
}

// refusal is a fault_message.
type refusal string

func (r refusal) Error() string { return string(r) }

func refused(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

package server

import (
	"context"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/shirou/gopsutil/v4/net"
	"github.com/shirou/gopsutil/v4/sensors"

	"gatehouse/tool"
)

// Sample is what was measured at one moment. What the system does not tell is
// nil. Sizes are bytes, rates bytes per second, parts percent.
type Sample struct {
	At      string   `json:"at"`
	General general  `json:"general"`
	CPU     *load    `json:"cpu,omitempty"`
	Memory  *memory  `json:"memory,omitempty"`
	Disk    *storage `json:"disk,omitempty"`
	Network *network `json:"network,omitempty"`
}

type general struct {
	Temperature *float64 `json:"temperature" doc:"the highest that a sensor tells, in degrees Celsius; null without one"`
}

type load struct {
	Used   float64 `json:"percentageUsed"`
	Idle   float64 `json:"idle"`
	User   float64 `json:"userSpace"`
	Kernel float64 `json:"kernelSpace"`
	Wait   float64 `json:"wait"`
}

type memory struct {
	Percent   float64 `json:"percentageUsed"`
	Total     uint64  `json:"total"`
	Available uint64  `json:"available"`
	Used      uint64  `json:"used"`
	SwapTotal uint64  `json:"swapTotal"`
	SwapUsed  uint64  `json:"swapUsed"`

	// Of compressed swap in memory, before compression; nil without it.
	ZRAMTotal     *uint64 `json:"zramTotal,omitempty"`
	ZRAMAvailable *uint64 `json:"zramAvailable,omitempty"`
	ZRAMUsed      *uint64 `json:"zramUsed,omitempty"`
}

type storage struct {
	Percent   float64 `json:"percentageUsed"`
	Used      uint64  `json:"used"`
	Available uint64  `json:"available"`
	Capacity  uint64  `json:"capacity"`
}

type network struct {
	Received     uint64  `json:"received" doc:"since the machine was booted, loopback left out"`
	Sent         uint64  `json:"sent"`
	ReceivedRate float64 `json:"receivedRate"`
	SentRate     float64 `json:"sentRate"`
}

// A Meter measures the machine. What grows over time it compares with what
// there was when it last looked, at least a fifth of a second ago. The zero value is
// ready. Safe for concurrent use.
type Meter struct {
	Path string // of the disk that is looked at; "" means the root

	mu   sync.Mutex
	last counted
}

// leastApart is what lies between two looks that are compared.
const leastApart = 200 * time.Millisecond

// counted are the figures that grow.
type counted struct {
	at       time.Time
	cpu      *cpu.TimesStat
	sent     uint64
	received uint64
}

// Take measures. It waits as long if it has nothing to compare with.
// The error is that of ctx.
func (m *Meter) Take(ctx context.Context) (Sample, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last.at.IsZero() {
		m.last = count(ctx)
	}
	if rest := leastApart - time.Since(m.last.at); rest > 0 {
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return Sample{}, context.Cause(ctx)
		}
	}
	before, now := m.last, count(ctx)
	m.last = now
	s := Sample{At: now.at.UTC().Format(time.RFC3339), CPU: loadBetween(before.cpu, now.cpu), General: general{hottest(ctx)}}
	if took := now.at.Sub(before.at).Seconds(); now.received+now.sent > 0 {
		s.Network = &network{now.received, now.sent, rate(before.received, now.received, took), rate(before.sent, now.sent, took)}
	}
	s.Memory, s.Disk = memoryNow(ctx), m.diskNow(ctx)
	return s, ctx.Err()
}

func count(ctx context.Context) counted {
	c := counted{at: time.Now()}
	if all, err := cpu.TimesWithContext(ctx, false); err == nil && len(all) > 0 {
		c.cpu = &all[0]
	}
	if all, err := net.IOCountersWithContext(ctx, true); err == nil {
		for _, i := range all {
			if i.Name != "lo" && !strings.HasPrefix(i.Name, "lo0") {
				c.received += i.BytesRecv
				c.sent += i.BytesSent
			}
		}
	}
	return c
}

// loadBetween says what processors did between two looks; nil where that
// cannot be told.
func loadBetween(a, b *cpu.TimesStat) *load {
	if a == nil || b == nil {
		return nil
	}
	user, wait, idle := b.User+b.Nice-a.User-a.Nice, b.Iowait-a.Iowait, b.Idle-a.Idle
	kernel := b.System + b.Irq + b.Softirq + b.Steal - a.System - a.Irq - a.Softirq - a.Steal
	user, kernel, wait, idle = max(user, 0), max(kernel, 0), max(wait, 0), max(idle, 0) // some count backwards at times
	all := user + kernel + wait + idle
	if all <= 0 {
		return nil
	}
	percent := func(x float64) float64 { return rounded(100 * x / all) }
	return &load{percent(user + kernel), percent(idle), percent(user), percent(kernel), percent(wait)}
}

func rate(before, now uint64, seconds float64) float64 {
	if now < before || seconds <= 0 { // an interface has gone
		return 0
	}
	return math.Round(float64(now-before) / seconds)
}

func rounded(x float64) float64 { return math.Round(10*x) / 10 }

func memoryNow(ctx context.Context) *memory {
	m, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return nil
	}
	out := &memory{Percent: rounded(m.UsedPercent), Total: m.Total, Available: m.Available, Used: m.Used}
	if s, err := mem.SwapMemoryWithContext(ctx); err == nil {
		out.SwapTotal, out.SwapUsed = s.Total, s.Used
	}
	if total, used, ok := zramOf(sysfs); ok {
		out.ZRAMTotal, out.ZRAMUsed, out.ZRAMAvailable = &total, &used, new(total-used)
	}
	return out
}

func (m *Meter) diskNow(ctx context.Context) *storage {
	path := m.Path
	switch {
	case path != "":
	case runtime.GOOS == "windows":
		path = `C:\`
	default:
		path = "/"
	}
	d, err := disk.UsageWithContext(ctx, path)
	if err != nil {
		return nil
	}
	return &storage{rounded(d.UsedPercent), d.Used, d.Free, d.Total}
}

// hottest is the highest temperature that can be: sensors that are not
// connected tell of 0, or of what would melt them.
func hottest(ctx context.Context) *float64 {
	all, err := sensors.TemperaturesWithContext(ctx)
	if err != nil && len(all) == 0 {
		return nil
	}
	all = slices.DeleteFunc(all, func(t sensors.TemperatureStat) bool { return t.Temperature <= 0 || t.Temperature >= 150 })
	if len(all) == 0 {
		return nil
	}
	hot := slices.MaxFunc(all, func(a, b sensors.TemperatureStat) int {
		return int(math.Copysign(1, a.Temperature-b.Temperature))
	}).Temperature
	hot = rounded(hot)
	return &hot
}

const metricsHelp = `Sizes are in bytes, rates in bytes per second, and what the processors did is in percent of the time since somebody last looked, a fifth of a second at least.

- disk is the file system of the host's data. disk_list shows all of them.
- The same is at gatehouse:///public/serverInfo/metrics, every ten seconds, to follow.
- What the system does not tell is left out; temperature is null without a sensor.`

func (s *server) metrics(ctx context.Context, _ *tool.Call, _ struct{}) (Sample, error) {
	return s.cfg.Meter.Take(ctx)
}

// MXFP4 with the scale of OCP's FLOOR rule (MXS-2): 32 bfloat16 in, one E8M0 scale and 32 E2M1 codes out.
// Integers only: the scale is a power of two, so that dividing by it moves the exponent.

// The E2M1 code of x / 2^(scale - 127), nearest, ties to the even code (E2M1-3).
module e2m1_of (
    input  wire [15:0] x,
    input  wire [7:0]  scale,
    output wire [3:0]  code
);
    wire       nan      = &x[14:7] && |x[6:0];
    wire [7:0] exponent = (x[14:7] == 0) ? 8'd1 : x[14:7];       // a subnormal has the exponent of the smallest normal
    wire [7:0] mantissa = {x[14:7] != 0, x[6:0]};
    // |x| / scale = mantissa * 2^-(5 + down); from down = 8 on it is below 0.25, the first limit.
    wire [8:0] down     = {1'b0, scale} + 9'd2 - {1'b0, exponent};
    wire [3:0] shift    = (down > 9'd8) ? 4'd8 : down[3:0];
    wire [21:0] y       = {12'd0, mantissa, 2'd0};                // in quarters, like the limits below
    wire [21:0] quarter = 22'd1 << (5 + shift);

    // '>' leaves a tie at the lower code and '>=' lifts it; alternating lands each tie on the even one.
    wire [2:0] magnitude = (y >  1 * quarter) + (y >=  3 * quarter) + (y >  5 * quarter) + (y >= 7 * quarter)
                         + (y > 10 * quarter) + (y >= 14 * quarter) + (y > 20 * quarter);
    // A NaN keeps its sign; what is divided by the scale NaN becomes NaN without one.
    assign code = nan ? {x[15], 3'd3} : (scale == 8'hff) ? 4'd3 : {x[15], magnitude};
endmodule

module mxfp4_block (
    input  wire [32*16-1:0] x,      // element i in bits 16 i + 15 to 16 i
    output wire [7:0]       scale,
    output wire [32*4-1:0]  codes   // element i in bits 4 i + 3 to 4 i, so that element 0 is in the low nibble (PACK-1)
);
    integer i;
    reg [14:0] largest;  // magnitudes order like their bits, and NaN above all of them
    always @* begin
        largest = 0;
        for (i = 0; i < 32; i = i + 1)
            if (x[16*i +: 15] > largest) largest = x[16*i +: 15];
    end
    wire [7:0] exponent = largest[14:7];
    assign scale = (exponent == 8'hff) ? 8'hff : (exponent > 2) ? exponent - 8'd2 : 8'd0;

    genvar n;
    generate
        for (n = 0; n < 32; n = n + 1) begin : element
            e2m1_of one (.x(x[16*n +: 16]), .scale(scale), .code(codes[4*n +: 4]));
        end
    endgenerate
endmodule

// Reads blocks as hexadecimal lines from +in=FILE, and writes scale and codes to +out=FILE.
module bench;
    reg  [8*256-1:0] from, to;
    reg  [32*16-1:0] x;
    wire [7:0]       scale;
    wire [32*4-1:0]  codes;
    integer          source, target;
    mxfp4_block block (.x(x), .scale(scale), .codes(codes));

    initial begin
        if (!$value$plusargs("in=%s", from) || !$value$plusargs("out=%s", to)) $finish;
        source = $fopen(from, "r");
        target = $fopen(to, "w");
        while ($fscanf(source, "%h\n", x) == 1) begin
            #1 $fdisplay(target, "%h %h", scale, codes);
        end
        $fclose(target);
        $finish;
    end
endmodule
